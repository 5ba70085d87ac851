-- Rows that change together: they are noted one by one, then written with one command an index.

local changed_rows, gone_rows, count_deltas = {}, {}, {}
-- By kind and name of the index.
local added, removed = {}, {}

local function into(lists, name)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  return list
end

local NOWHERE = {}

local function note_places(kind, id, was, now)
  local old_places, new_places = was and places_of(was), now and places_of(now)
  if old_places == new_places then
    return
  end
  local old = old_places and read_places(old_places) or NOWHERE
  local new = new_places and read_places(new_places) or NOWHERE
  local of_kind = into(added, kind)
  for name, key in pairs(new) do
    if old[name] ~= key then
      local list = into(of_kind, name)
      local size = #list
      list[size + 1] = '0'
      list[size + 2] = key .. id
    end
  end
  of_kind = into(removed, kind)
  for name, key in pairs(old) do
    if new[name] ~= key then
      local list = into(of_kind, name)
      list[#list + 1] = key .. id
    end
  end
end

local function each_index(lists, visit)
  for kind, of_kind in pairs(lists) do
    local base = index_base(kind)
    for name, list in pairs(of_kind) do
      visit(base .. name, list)
    end
  end
end

-- A row that was `was` is to be `now`; false means that there is none.
local function note(kind, id, was, now)
  if was == now then
    return
  end
  if now then
    local list = into(changed_rows, kind)
    list[#list + 1] = id
    list[#list + 1] = now
  else
    local list = into(gone_rows, kind)
    list[#list + 1] = id
  end
  if not was or not now then
    count_deltas[kind] = (count_deltas[kind] or 0) + (now and 1 or -1)
  end
  note_places(kind, id, was, now)
end

-- In a Cluster whose slot is on its way to another node, a key that is not here cannot be told from one that has left:
-- asking for it fails. So every key is asked for before the first one is written.
local function touch_all()
  call('EXISTS', prefix .. 'kinds')
  local function touch(index)
    call('EXISTS', index)
  end
  each_index(added, touch)
  each_index(removed, touch)
  for _, lists in ipairs({changed_rows, gone_rows}) do
    for kind in pairs(lists) do
      call('EXISTS', rows_key(kind))
    end
  end
end

-- What takes memory goes first: a server that is full refuses the first such command, and then nothing is written. It
-- also keeps keys from going empty, and with that away, before something is added to them.
local function write_all()
  for kind, list in pairs(changed_rows) do
    in_pieces('HSET', rows_key(kind), list)
  end
  for kind, list in pairs(gone_rows) do
    in_pieces('HDEL', rows_key(kind), list)
  end
  each_index(added, function(index, members) in_pieces('ZADD', index, members) end)
  each_index(removed, function(index, members) in_pieces('ZREM', index, members) end)
  local kinds = prefix .. 'kinds'
  for kind, delta in pairs(count_deltas) do
    if delta > 0 then
      call('HINCRBY', kinds, kind, delta)
    end
  end
  for kind, delta in pairs(count_deltas) do
    if delta < 0 and call('HINCRBY', kinds, kind, delta) <= 0 then
      call('HDEL', kinds, kind)
    end
  end
end
