-- Let a loaded generation count, under a new epoch and with an empty log beyond every cursor given out so far.
-- ARGV: format, epoch, generation, the number it has reached, new epoch. Returns {'ok'}; {'epoch'} or {'format', oldest}
-- as a commit; {'gone'} when the generation lacks something. Sent again it finds the new epoch there, and is done.

local oldest, epoch, generation, newest = unpack(call('HMGET', meta, 'oldest', 'epoch', 'generation', 'seq'))
if epoch == ARGV[5] then
  return {'ok'}
end
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
local generations = meta .. ':generations'
if string.match(call('HGET', generations, ARGV[3]) or '', '%.(%d+)$') ~= ARGV[4] then
  return {'gone'}
end
newest = number(tonumber(newest) + 1)
call('HSET', generations, generation, 'old')
call('HDEL', generations, ARGV[3])
call('HSET', meta, 'epoch', ARGV[5], 'generation', ARGV[3], 'seq', newest, 'start', newest, 'logBytes', '0')
return {'ok'}
