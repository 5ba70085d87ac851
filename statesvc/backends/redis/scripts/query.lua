-- Walk along indexes of one kind, all at one moment, and fetch the rows.
-- ARGV: kind, 1 when descending, most rows, lowest and highest member as BYLEX wants them, how many bytes of a member
-- stand before the id ("t": a text that ends with a zero byte), most bytes; then the names of the indexes.
-- Returns the epoch, the member to go on behind ("" when the walk is over or has all rows asked for), then id and stored
-- row of each.

local epoch, generation = unpack(call('HMGET', meta, 'epoch', 'generation'))
if not epoch then
  return {''}
end
of_generation(generation)

local kind, descending, most, low, high = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), ARGV[4], ARGV[5]
local before_id, most_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local base, rows = index_base(kind), rows_key(kind)

-- Lua compares texts as the server's locale sorts them; members are bytes.
local function is_less(one, other)
  local shorter = math.min(#one, #other)
  for place = 1, shorter do
    local a, b = byte(one, place), byte(other, place)
    if a ~= b then
      return a < b
    end
  end
  return #one < #other
end

local function merged(one, other)
  local result, a, b = {}, 1, 1
  while a <= #one or b <= #other do
    local x, y = one[a], other[b]
    if x == y then
      result[#result + 1] = x
      a, b = a + 1, b + 1
    elseif not y or (x and is_less(x, y) ~= descending) then
      result[#result + 1] = x
      a = a + 1
    else
      result[#result + 1] = y
      b = b + 1
    end
  end
  return result
end

local function members(count)
  local lists = {}
  for place = 8, #ARGV do
    local list
    if descending then
      list = call('ZRANGE', base .. ARGV[place], high, low, 'BYLEX', 'REV', 'LIMIT', 0, count)
    else
      list = call('ZRANGE', base .. ARGV[place], low, high, 'BYLEX', 'LIMIT', 0, count)
    end
    if #list > 0 then
      lists[#lists + 1] = list
    end
  end
  while #lists > 1 do
    local halved = {}
    for place = 1, #lists, 2 do
      halved[#halved + 1] = lists[place + 1] and merged(lists[place], lists[place + 1]) or lists[place]
    end
    lists = halved
  end
  return lists[1] or {}
end

local reply, bytes, found = {epoch, ''}, 0, 0

-- Rows may be small or large: few at first, more while they turn out small.
local function fetch(list, last)
  local first, step = 1, 16
  while first <= last do
    local ids = {}
    for place = first, math.min(first + step - 1, last) do
      ids[#ids + 1] = id_of(list[place], before_id) or ''
    end
    local values = call('HMGET', rows, unpack(ids))
    for place, value in ipairs(values) do
      if value then
        reply[#reply + 1] = ids[place]
        reply[#reply + 1] = value
        bytes = bytes + #value
        found = found + 1
      end
    end
    first = first + step
    if bytes > most_bytes and first <= last then
      return list[first - 1]
    end
    step = math.min(step * 2, 512)
  end
  return nil
end

while found < most do
  local asked = most - found
  local list = members(asked)
  local last = math.min(#list, asked)
  local stopped = fetch(list, last)
  if stopped then
    reply[2] = stopped
    break
  end
  if last < asked then
    break
  end
  -- A member whose row is not there is damage; the walk goes on behind it.
  if descending then
    high = '(' .. list[last]
  else
    low = '(' .. list[last]
  end
end
return reply
