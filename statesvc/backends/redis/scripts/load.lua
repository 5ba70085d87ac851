-- Put rows into a generation that is being loaded. ARGV: generation, 1 in a Cluster, then kind, id and stored row of each.
-- Returns 1, or 0 when that generation is no longer being loaded.

local generations = meta .. ':generations'
if call('HEXISTS', generations, ARGV[1]) == 0 then
  return 0
end
of_generation(ARGV[1])
local last = {}
for place = 3, #ARGV, 3 do
  local kind, id = ARGV[place], ARGV[place + 1]
  into(last, kind)[id] = ARGV[place + 2]
end
for kind, of_kind in pairs(last) do
  for id, value in pairs(of_kind) do
    note(kind, id, call('HGET', rows_key(kind), id), value)
  end
end
if ARGV[2] == '1' then
  touch_all()
end
write_all()
call('HSET', generations, ARGV[1], call('TIME')[1])
return 1
