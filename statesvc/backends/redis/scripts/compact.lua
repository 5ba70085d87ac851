-- Cut the oldest entries of the log that need not be kept, and what histories say of them.
-- ARGV: format, epoch, entries older than this may go, most bytes kept, most entries cut.
-- Returns {'ok', 1 when there may be more to cut, start, bytes of the log}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch, generation, start, log_bytes =
  unpack(call('HMGET', meta, 'oldest', 'epoch', 'generation', 'start', 'logBytes'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
of_generation(generation)
local since, most_bytes, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local log = prefix .. 'log'
start, log_bytes = tonumber(start), tonumber(log_bytes)

-- Entries may be large: few are read at a time, and a step ends when enough was read.
local AT_A_TIME, ENOUGH_BYTES = 50, 4 * 1024 * 1024
local cut, read, more, records = 0, 0, 0, {}

local function cut_one(name, fields)
  cut, start = cut + 1, tonumber(string.match(name, '^%d+'))
  local size = #fields[8] + #fields[10]
  read, log_bytes = read + size, log_bytes - size
  local key = history_key(fields[2], fields[4])
  records[key] = (records[key] or 0) + 1
end

local function cut_some()
  local entries = call('XRANGE', log, number(start + 1), '+', 'COUNT', AT_A_TIME)
  for _, entry in ipairs(entries) do
    if log_bytes <= most_bytes and tonumber(entry[2][6]) >= since then
      return false
    end
    cut_one(entry[1], entry[2])
  end
  return #entries == AT_A_TIME
end

while cut_some() do
  if cut >= most or read >= ENOUGH_BYTES then
    more = 1
    break
  end
end
if cut == 0 then
  return {'ok', 0, number(start), number(log_bytes)}
end
-- In a Cluster a key that has left fails here, before anything is cut.
local going = {}
for key, most_names in pairs(records) do
  for _, name in ipairs(call('LRANGE', key, 0, most_names - 1)) do
    if tonumber(name) > start then
      break
    end
    going[key] = (going[key] or 0) + 1
  end
end
call('XTRIM', log, 'MINID', '=', number(start + 1))
for key, count in pairs(going) do
  call('LPOP', key, count)
end
call('HSET', meta, 'start', number(start), 'logBytes', number(log_bytes))
return {'ok', more, number(start), number(log_bytes)}
