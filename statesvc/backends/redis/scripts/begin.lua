-- Make a generation to load into; it does not count until everything is in it. ARGV: format, epoch.
-- Returns {'ok', its name}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch = unpack(call('HMGET', meta, 'oldest', 'epoch'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
call('EXISTS', meta .. ':generations')
local name = number(call('HINCRBY', meta, 'generations', 1))
call('HSET', meta .. ':generations', name, call('TIME')[1])
return {'ok', name}
