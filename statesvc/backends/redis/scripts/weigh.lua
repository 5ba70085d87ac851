-- Put the counted bytes of the log right. ARGV: format, epoch, the cut number from which on it was weighed, by how many
-- bytes the count is wrong. Returns {'ok', 1 when done}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch, start, log_bytes = unpack(call('HMGET', meta, 'oldest', 'epoch', 'start', 'logBytes'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
if start ~= ARGV[3] then
  return {'ok', 0}
end
call('HSET', meta, 'logBytes', number(tonumber(log_bytes) + tonumber(ARGV[4])))
return {'ok', 1}
