-- Make the namespace unless it is there. ARGV: format, oldest format that may write, epoch, server, then the fields wanted.
-- Returns 1 when it was made, then the fields.

local made = 0
if call('HEXISTS', meta, 'epoch') == 0 then
  call('HSET', meta, 'format', ARGV[1], 'oldest', ARGV[2], 'epoch', ARGV[3], 'server', ARGV[4],
    'generation', '1', 'generations', '1', 'seq', '0', 'start', '0', 'logBytes', '0')
  made = 1
end
return {made, call('HMGET', meta, unpack(ARGV, 5))}
