-- Make the history of a record again. ARGV: format, epoch, kind, id, the newest number of the log that was read, then the
-- numbers of its entries. What came behind is kept. Returns {'ok'}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch, generation, start = unpack(call('HMGET', meta, 'oldest', 'epoch', 'generation', 'start'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
of_generation(generation)
local kind, id, read = ARGV[3], ARGV[4], tonumber(ARGV[5])
local key, log, numbers = history_key(kind, id), prefix .. 'log', {}
if call('HEXISTS', rows_key(kind), id) == 1 then
  for place = 6, #ARGV do
    if tonumber(ARGV[place]) > tonumber(start) then
      numbers[#numbers + 1] = ARGV[place]
    end
  end
  for _, name in ipairs(call('LRANGE', key, 0, -1)) do
    if tonumber(name) > read then
      numbers[#numbers + 1] = name
    end
  end
end
local had = call('LLEN', key)
if #numbers == 0 then
  call('DEL', key)
else
  in_pieces('RPUSH', key, numbers)
  call('LTRIM', key, had, -1)
end
return {'ok'}
