-- Log entries that are missing in the history of their record. ARGV: number, kind, id and uid of each entry.
-- Returns the epoch, then the numbers of those that are missing.

local epoch, generation, start = unpack(call('HMGET', meta, 'epoch', 'generation', 'start'))
if not epoch then
  return {''}
end
of_generation(generation)

local function is_in(key, wanted)
  local low, high = 0, call('LLEN', key) - 1
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local found = tonumber(call('LINDEX', key, middle))
    if found == wanted then
      return true
    elseif found < wanted then
      low = middle + 1
    else
      high = middle - 1
    end
  end
  return false
end

-- What a removed record left in the log is older than all that was made under its name again.
local function should_be_in(key, wanted, kind, id, uid)
  local head = call('LINDEX', key, 0)
  if head then
    return tonumber(head) < wanted
  end
  local value = call('HGET', rows_key(kind), id)
  return value and string.match(stamp_of(value), '^%d+:(.*)$') == uid
end

local reply = {epoch}
for place = 1, #ARGV, 4 do
  local wanted, kind, id, uid = tonumber(ARGV[place]), ARGV[place + 1], ARGV[place + 2], ARGV[place + 3]
  local key = history_key(kind, id)
  if wanted > tonumber(start) and should_be_in(key, wanted, kind, id, uid) and not is_in(key, wanted) then
    reply[#reply + 1] = ARGV[place]
  end
end
return reply
