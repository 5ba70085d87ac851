-- Write down which server was judged, and the epoch that holds from now on, unless somebody else has.
-- ARGV: the epoch and the server the judgement was made on, those that hold now, then the fields wanted.
-- Returns the fields as they are now.

local epoch, server = unpack(call('HMGET', meta, 'epoch', 'server'))
if epoch == ARGV[1] and server == ARGV[2] then
  call('HSET', meta, 'epoch', ARGV[3], 'server', ARGV[4])
end
return call('HMGET', meta, unpack(ARGV, 5))
