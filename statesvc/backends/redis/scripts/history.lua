-- Log entries of one record. ARGV: kind, id, the number behind which they are wanted, most entries, most bytes.
-- Returns the epoch, then the entries.

local epoch, generation, start = unpack(call('HMGET', meta, 'epoch', 'generation', 'start'))
if not epoch then
  return {''}
end
of_generation(generation)
local key, log = history_key(ARGV[1], ARGV[2]), prefix .. 'log'
local after = math.max(tonumber(ARGV[3]), tonumber(start))

-- The first number behind `after`: the list grows at its end, so it is sorted.
local low, high = 0, call('LLEN', key)
while low < high do
  local middle = math.floor((low + high) / 2)
  if tonumber(call('LINDEX', key, middle)) <= after then
    low = middle + 1
  else
    high = middle
  end
end

local reply, bytes = {epoch}, 0
for _, name in ipairs(call('LRANGE', key, low, low + tonumber(ARGV[4]) - 1)) do
  local entry = call('XRANGE', log, name .. '-0', name .. '-0')[1]
  if entry then
    reply[#reply + 1] = entry
    for _, part in ipairs(entry[2]) do
      bytes = bytes + #part
    end
    if bytes > tonumber(ARGV[5]) then
      break
    end
  end
end
return reply
