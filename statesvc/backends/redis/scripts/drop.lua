-- One step of dropping a generation that does not count: an old one, or one whose loading was given up.
-- ARGV: format, epoch, most rows, seconds after which a generation nobody has loaded into was given up.
-- Returns {'ok', 1 when there is more to drop}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch, counts = unpack(call('HMGET', meta, 'oldest', 'epoch', 'generation'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
local generations, now = meta .. ':generations', tonumber(call('TIME')[1])
local known, chosen = call('HGETALL', generations), nil
for place = 1, #known, 2 do
  local since = tonumber(known[place + 1])
  if known[place] ~= counts and (not since or now - since > tonumber(ARGV[4])) then
    chosen = known[place]
    break
  end
end
if not chosen then
  return {'ok', 0}
end
if call('HGET', generations, chosen) ~= 'old' then
  call('HSET', generations, chosen, 'old')
end
of_generation(chosen)
local kinds, left = prefix .. 'kinds', tonumber(ARGV[3])

-- A damaged row goes as well; what it alone names stays behind.
local function drop_row(kind, id, value)
  local base = index_base(kind)
  local whole, places = pcall(function() return read_places(places_of(value)) end)
  for name in pairs(whole and places or {}) do
    call('UNLINK', base .. name)
  end
  call('UNLINK', history_key(kind, id))
end

for _, kind in ipairs(call('HKEYS', kinds)) do
  local rows = rows_key(kind)
  -- Any rows will do. A scan from the beginning would look at what was emptied before, and find none for ever.
  local found = call('HRANDFIELD', rows, left, 'WITHVALUES')
  for place = 1, #found, 2 do
    drop_row(kind, found[place], found[place + 1])
    call('HDEL', rows, found[place])
  end
  if call('EXISTS', rows) == 1 then
    return {'ok', 1}
  end
  call('HDEL', kinds, kind)
  left = left - #found / 2
  if left <= 0 then
    return {'ok', 1}
  end
end
call('UNLINK', prefix .. 'log', kinds)
call('HDEL', generations, chosen)
return {'ok', 1}
