-- Put rows back where they stand. ARGV: format, epoch, kind; then id, SHA-1 of the stored row that was looked at, the
-- stored row as it should be. A row that has changed meanwhile is left alone: whoever changed it saw to its places.
-- Returns {'ok', how many were put right}; {'epoch'} or {'format', oldest} as a commit.

local oldest, epoch, generation = unpack(call('HMGET', meta, 'oldest', 'epoch', 'generation'))
local refused = refusal(oldest, epoch)
if refused then
  return refused
end
of_generation(generation)
local kind, done = ARGV[3], 0
local rows, base = rows_key(kind), index_base(kind)
for place = 4, #ARGV, 3 do
  local id, seen, value = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  local stored = call('HGET', rows, id)
  if stored and redis.sha1hex(stored) == seen then
    local places = read_places(places_of(value))
    for name in pairs(places) do
      -- In a Cluster a key that has left fails here, before this row is touched.
      call('EXISTS', base .. name)
    end
    call('HSET', rows, id, value)
    for name, key in pairs(places) do
      call('ZADD', base .. name, 0, key .. id)
    end
    done = done + 1
  end
end
return {'ok', done}
