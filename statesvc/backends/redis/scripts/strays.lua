-- Members of an index whose row does not stand there. ARGV: kind, name of the index, how many bytes of a member stand
-- before the id ("t": a text that ends with a zero byte), lowest member as BYLEX wants it, how many, 1 to take them out.
-- Returns the epoch, the last member looked at ("" at the end), then the strays.

local epoch, generation = unpack(call('HMGET', meta, 'epoch', 'generation'))
if not epoch then
  return {''}
end
of_generation(generation)
local kind, name, before_id = ARGV[1], ARGV[2], tonumber(ARGV[3])
local index, rows = index_base(kind) .. name, rows_key(kind)
local members = call('ZRANGE', index, ARGV[4], '+', 'BYLEX', 'LIMIT', 0, ARGV[5])
local reply = {epoch, #members == tonumber(ARGV[5]) and members[#members] or ''}

local function stands_there(member)
  local id = id_of(member, before_id)
  local value = id and call('HGET', rows, id)
  if not value then
    return false
  end
  local whole, places = pcall(function() return read_places(places_of(value)) end)
  return whole and places[name] ~= nil and places[name] .. id == member
end

for _, member in ipairs(members) do
  if not stands_there(member) then
    reply[#reply + 1] = member
    if ARGV[6] == '1' then
      call('ZREM', index, member)
    end
  end
end
return reply
