-- How many members indexes have between two bounds. ARGV: kind, lowest, highest, then the names of the indexes.
-- Returns the epoch and the count. The indexes must not share rows.

local epoch, generation = unpack(call('HMGET', meta, 'epoch', 'generation'))
if not epoch then
  return {'', 0}
end
of_generation(generation)
local base, total = index_base(ARGV[1]), 0
for place = 4, #ARGV do
  total = total + call('ZLEXCOUNT', base .. ARGV[place], ARGV[2], ARGV[3])
end
return {epoch, total}
