-- Make a generation to load into; it does not count until everything is in it. ARGV: format, epoch, its first number.
-- Its mark among the generations: when it was last loaded into, a point, and a number that goes up with every call that
-- loads into it, in the same step. Where calls were lost the number is too low; of one that is being dropped it is gone.
-- Returns {'ok', its name}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch = unpack(call('HMGET', meta, 'oldest', 'epoch'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
call('EXISTS', meta .. ':generations')
local name = number(call('HINCRBY', meta, 'generations', 1))
call('HSET', meta .. ':generations', name, call('TIME')[1] .. '.' .. ARGV[3])
return {'ok', name}
