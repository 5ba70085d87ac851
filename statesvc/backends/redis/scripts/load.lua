-- Put rows into a generation that is being loaded. ARGV: format, epoch, generation, the number it has reached, 1 in a
-- Cluster, then kind, id and stored row of each.
-- Returns {'ok'}; {'epoch'} or {'format', oldest} as a commit; {'gone'} when the generation lacks something.

local oldest, epoch = unpack(call('HMGET', meta, 'oldest', 'epoch'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
local generations = meta .. ':generations'
if string.match(call('HGET', generations, ARGV[3]) or '', '%.(%d+)$') ~= ARGV[4] then
  return {'gone'}
end
of_generation(ARGV[3])
local last = {}
for place = 6, #ARGV, 3 do
  local kind, id = ARGV[place], ARGV[place + 1]
  into(last, kind)[id] = ARGV[place + 2]
end
for kind, of_kind in pairs(last) do
  for id, value in pairs(of_kind) do
    note(kind, id, call('HGET', rows_key(kind), id), value)
  end
end
if ARGV[5] == '1' then
  touch_all()
end
write_all()
call('HSET', generations, ARGV[3], call('TIME')[1] .. '.' .. number(tonumber(ARGV[4]) + 1))
return {'ok'}
