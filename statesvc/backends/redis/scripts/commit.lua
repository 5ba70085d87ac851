-- Apply units of conditional writes, each wholly or not at all, in their order.
-- ARGV: format, epoch, 1 in a Cluster, number of units; then a unit: number of writes; a write: kind, id, the stamp it
-- expects ("" for no row), the digest of the very row it expects ("" for any of that stamp), 1 when the row is to go for
-- good, the stored row, when it happened, the event ("" for none).
-- Returns {'ok', newest log number, a 1 or 0 for each unit, bytes of the log}; {'epoch'} or {'format', oldest} when all is refused.

local oldest, epoch, generation, newest, log_bytes =
  unpack(call('HMGET', meta, 'oldest', 'epoch', 'generation', 'seq', 'logBytes'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
of_generation(generation)
newest, log_bytes = tonumber(newest), tonumber(log_bytes)

local WIDTH = 8
local units = tonumber(ARGV[4])

-- Every record named, read with one command a kind.
local records, in_order, wanted = {}, {}, {}
local at = 5
for _ = 1, units do
  local writes = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, writes do
    local kind, id = ARGV[at], ARGV[at + 1]
    local of_kind = into(records, kind)
    if not of_kind[id] then
      local record = {kind = kind, id = id}
      of_kind[id] = record
      in_order[#in_order + 1] = record
      local ids = into(wanted, kind)
      ids[#ids + 1] = id
    end
    at = at + WIDTH
  end
end
for kind, ids in pairs(wanted) do
  local of_kind = records[kind]
  for first = 1, #ids, AT_ONCE do
    local last = math.min(first + AT_ONCE - 1, #ids)
    local values = call('HMGET', rows_key(kind), unpack(ids, first, last))
    for place = first, last do
      local record, value = of_kind[ids[place]], values[place - first + 1]
      record.was, record.now = value, value
      record.stamp = value and stamp_of(value) or ''
    end
  end
end

local entries = {}

local function take(record, first)
  local value, event = ARGV[first + 5], ARGV[first + 7]
  local goes = ARGV[first + 4] == '1'
  if event ~= '' then
    newest = newest + 1
    local row, name = row_of(value), number(newest)
    log_bytes = log_bytes + #event + #row
    entries[#entries + 1] =
      {name .. '-0', 'k', record.kind, 'i', record.id, 't', ARGV[first + 6], 'e', event, 'r', row}
    if not goes then
      record.numbers = record.numbers or {}
      record.numbers[#record.numbers + 1] = name
    end
  end
  if goes then
    record.now, record.stamp, record.numbers, record.forgotten = false, '', nil, true
  else
    record.now, record.stamp = value, stamp_of(value)
  end
end

-- What a refused write would have made nobody may build on, though another's row may carry the same stamp.
local function lose(record, value)
  if value ~= '' then
    record.lost = record.lost or {}
    record.lost[stamp_of(value)] = true
  end
end

local results = {}
at = 5
for unit = 1, units do
  local writes = tonumber(ARGV[at])
  at = at + 1
  local met = true
  local last = at + (writes - 1) * WIDTH
  for place = at, last, WIDTH do
    local record, expected, digest = records[ARGV[place]][ARGV[place + 1]], ARGV[place + 2], ARGV[place + 3]
    if
      record.stamp ~= expected
      or (record.lost and record.lost[expected])
      or (digest ~= '' and redis.sha1hex(record.now) ~= digest)
    then
      met = false
      break
    end
  end
  for place = at, last, WIDTH do
    local record = records[ARGV[place]][ARGV[place + 1]]
    if met then
      take(record, place)
    else
      lose(record, ARGV[place + 5])
    end
  end
  results[unit] = met and '1' or '0'
  at = at + writes * WIDTH
end

for _, record in ipairs(in_order) do
  note(record.kind, record.id, record.was, record.now)
end
local log = prefix .. 'log'
if ARGV[3] == '1' then
  touch_all()
  call('EXISTS', log)
  for _, record in ipairs(in_order) do
    if record.numbers or record.forgotten then
      call('EXISTS', history_key(record.kind, record.id))
    end
  end
end

-- First of all: numbers that were given out are never given out again, even if the server refuses what follows.
if #entries > 0 then
  call('HSET', meta, 'seq', number(newest), 'logBytes', number(log_bytes))
end
for _, entry in ipairs(entries) do
  call('XADD', log, unpack(entry))
end
write_all()
for _, record in ipairs(in_order) do
  local key = (record.forgotten or record.numbers) and history_key(record.kind, record.id)
  if record.numbers then
    -- Never through an empty list: in a Cluster a key that was deleted here may no longer be made here.
    local had = record.forgotten and call('LLEN', key) or 0
    in_pieces('RPUSH', key, record.numbers)
    if had > 0 then
      call('LTRIM', key, had, -1)
    end
  elseif record.forgotten then
    call('DEL', key)
  end
end
return {'ok', number(newest), table.concat(results), number(log_bytes)}
