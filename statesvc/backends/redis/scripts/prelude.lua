-- Stands before every other script: the names of keys, and the stored form of a row.
-- KEYS[1] is the namespace's hash; all other names are made of it, so that they share its slot.
--
-- A stored row: lengths of the two parts that follow (4 bytes each), the stamp "revision:uid", its places in the
-- indexes, and the row itself, which scripts only copy. Places: the created key (8 bytes), how many indexes sorted by
-- creation the row is in (4), their names (1 byte of length and text each); then name and key of every other one (1 and
-- 4 bytes of length). A member of an index is the key with the id behind it.

local call, sub, byte, unpack_struct = redis.call, string.sub, string.byte, struct.unpack
local meta = KEYS[1]
local prefix

-- Lua writes large numbers as 1e+15 when left to itself.
local function number(value)
  return string.format('%.0f', value)
end

-- What a script whose ARGV begin with format and epoch answers when it must not write: {'epoch'} when another epoch
-- holds, {'format', oldest} when only newer formats may be written; nil when it may.
local function refusal(oldest, epoch)
  if epoch ~= ARGV[2] then
    return {'epoch'}
  end
  if tonumber(oldest) > tonumber(ARGV[1]) then
    return {'format', oldest}
  end
  return nil
end

-- Once a script, before any other name is made.
local function of_generation(generation)
  prefix = meta .. ':' .. generation .. ':'
end

local function rows_key(kind)
  return prefix .. 'r:' .. kind
end

local function index_base(kind)
  return prefix .. 'i:' .. #kind .. ':' .. kind .. ':'
end

local history_bases = {}

local function history_key(kind, id)
  local base = history_bases[kind]
  if not base then
    base = prefix .. 'h:' .. #kind .. ':' .. kind .. ':'
    history_bases[kind] = base
  end
  return base .. id
end

local function stamp_of(value)
  return sub(value, 9, 8 + unpack_struct('>I4', value))
end

local function places_of(value)
  local stamp, places = unpack_struct('>I4I4', value)
  return sub(value, 9 + stamp, 8 + stamp + places)
end

local function row_of(value)
  local stamp, places = unpack_struct('>I4I4', value)
  return sub(value, 9 + stamp + places)
end

-- The indexes a row stands in: name to key.
local function read_places(places)
  local found = {}
  local created, count = unpack_struct('>c8I4', places)
  local at = 13
  local name, key
  for _ = 1, count do
    name, at = unpack_struct('>Bc0', places, at)
    found[name] = created
  end
  local size = #places
  while at <= size do
    name, key, at = unpack_struct('>Bc0I4c0', places, at)
    found[name] = key
  end
  return found
end

-- The id in a member: behind so many bytes, or behind a text that ends with a zero byte.
local function id_of(member, before_id)
  if before_id then
    return sub(member, before_id + 1)
  end
  local at = 1
  while true do
    at = string.find(member, '%z', at)
    if not at then
      return nil
    end
    -- A zero byte of the text itself is followed by 255.
    if byte(member, at + 1) ~= 255 then
      return sub(member, at + 1)
    end
    at = at + 2
  end
end

-- Lua cannot hand over more than 8,000 arguments at once.
local AT_ONCE = 4000

local function in_pieces(command, key, arguments)
  local count = #arguments
  for first = 1, count, AT_ONCE do
    call(command, key, unpack(arguments, first, math.min(first + AT_ONCE - 1, count)))
  end
end
