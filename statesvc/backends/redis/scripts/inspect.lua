-- Look at rows, one step of a scan. ARGV: kind, where the scan stands, how many rows.
-- Returns the epoch, the run id of this server process, where the scan stands now, then of each row: id, stored row, names
-- of indexes it is missing in (each with 1 byte of length before it), and what is wrong with its history ("" for nothing).

local epoch, generation, start = unpack(call('HMGET', meta, 'epoch', 'generation', 'start'))
if not epoch then
  return {''}
end
of_generation(generation)
local kind = ARGV[1]
local base, log = index_base(kind), prefix .. 'log'

local function missing_in(id, value)
  local names = {}
  for name, key in pairs(read_places(places_of(value))) do
    if not call('ZSCORE', base .. name, key .. id) then
      names[#names + 1] = struct.pack('Bc0', #name, name)
    end
  end
  return table.concat(names)
end

local function wrong_with_history(id)
  local key = history_key(kind, id)
  for _, place in ipairs({0, -1}) do
    local name = call('LINDEX', key, place)
    if not name then
      return ''
    end
    if tonumber(name) <= tonumber(start) then
      return 'names entries that were cut'
    end
    local entry = call('XRANGE', log, name .. '-0', name .. '-0')[1]
    if not entry or entry[2][2] ~= kind or entry[2][4] ~= id then
      return 'names entries that are not its own'
    end
  end
  return ''
end

local cursor, found = unpack(call('HSCAN', rows_key(kind), ARGV[2], 'COUNT', ARGV[3]))
local process = string.match(call('INFO', 'server'), 'run_id:(%x+)') or ''
local reply = {epoch, process, cursor}
for place = 1, #found, 2 do
  local id, value = found[place], found[place + 1]
  local whole, names = pcall(missing_in, id, value)
  reply[#reply + 1] = id
  reply[#reply + 1] = value
  reply[#reply + 1] = whole and names or ''
  reply[#reply + 1] = wrong_with_history(id)
end
return reply
