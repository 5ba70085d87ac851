-- Write down which server was judged, and the epoch that holds from now on, unless somebody else has.
-- ARGV: the epoch and the server the judgement was made on, those that hold now, then the fields wanted.
-- Returns the fields as they are now.

local epoch, server = unpack(call('HMGET', meta, 'epoch', 'server'))
if epoch == ARGV[1] and server == ARGV[2] then
  -- Removing is allowed when the memory is full, and so is all that follows it: a full server must be judged, or nobody
  -- could read it or clean it up. There is no such field.
  call('HDEL', meta, '')
  call('HSET', meta, 'epoch', ARGV[3], 'server', ARGV[4])
end
return call('HMGET', meta, unpack(ARGV, 5))
