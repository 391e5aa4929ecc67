"""The Lua that runs inside Redis, where each script is one atomic step for all gateways.

Every script gets the prefix of all keys as its first argument; what follows is said above each. Numbers travel as text,
because Lua's own way of writing one keeps 14 digits. The keys, each after the prefix:

    format             the version of all this
    cohort:ID          hash: identity, model, reference, verdicts, times, ``observed``, and ``weight`` in bytes
    outputs:ID         hash: output digest to how often it was seen
    specimens:ID       hash: output digest to its specimen in JSON
    entries:ID         list: ``NUMBER:LABEL`` of each answer of a run, so that it goes with its cohort
    seen, seen:MODE    sorted sets of IDs by when a cohort was last seen: all, and those of one mode
    diverged, diverged:MODE    the same of those in which an output differed
    run:LABEL          sorted set by number: ``NUMBER:JSON`` of each answer of a run
    runs               sorted set of labels by their latest number
    number, bytes      the latest number given, and the weight of everything
"""

from typing import Final

FORMAT: Final = 1

COHORT_BYTES: Final = 1700
OUTPUT_BYTES: Final = 100
SPECIMEN_BYTES: Final = 200
ENTRY_BYTES: Final = 380
"""What one of each takes beside its own texts; measured on Redis 7.0.15, see tests/conformance/test_redis.py."""

OPEN: Final = """
-- The version to write where there is none. Gives the version that is there.
local key, version = ARGV[1] .. 'format', ARGV[2]
if redis.call('SETNX', key, version) == 1 then return version end
return redis.call('GET', key)
"""

READ: Final = """
-- Two hashes. Gives both; a transaction would do as well, but is refused when Redis is full.
return {redis.call('HGETALL', ARGV[1] .. ARGV[2]), redis.call('HGETALL', ARGV[1] .. ARGV[3])}
"""

RECORD: Final = f"""
-- A batch, laid out by RedisStore.record. Gives, for each cohort whose reference is another than the one sent: its
-- place in the batch, and that reference.
--
-- The first write must be one that Redis refuses when its memory is full (HSET, HINCRBY): it refuses a script at its
-- first write or not at all, and so a batch is in as a whole or not at all.
local prefix, at = ARGV[1], 1
local function take()
  at = at + 1
  return ARGV[at]
end
local function several(count)
  local taken = {{}}
  for i = 1, count do taken[i] = take() end
  return taken
end
local weights = {{}}
local function weigh(id, bytes) weights[id] = (weights[id] or 0) + bytes end

local others = {{}}
for place = 1, tonumber(take()) do
  local id, sent = take(), several(9)
  local first, last = take(), take()
  local matched, diverged = tonumber(take()), tonumber(take())
  local unjudged = several(tonumber(take()))
  local cohort, outputs = prefix .. 'cohort:' .. id, prefix .. 'outputs:' .. id
  local reference, is_new = sent[5], redis.call('EXISTS', cohort) == 0
  if is_new then
    redis.call('HSET', cohort, 'key', sent[1], 'mode', sent[2], 'posture', sent[3], 'model', sent[4],
      'digest', sent[5], 'blocks', sent[6], 'replica', sent[7], 'peak', sent[8], 'cached', sent[9],
      'first', first, 'last', last, 'observed', 0, 'matched', 0, 'diverged', 0, 'weight', 0)
    -- What is left of a cohort that Redis itself threw out.
    redis.call('DEL', outputs, prefix .. 'specimens:' .. id, prefix .. 'entries:' .. id)
    local bytes = {COHORT_BYTES}
    for _, text in ipairs(sent) do bytes = bytes + #text end
    weigh(id, bytes)
  else
    local stored = redis.call('HMGET', cohort, 'digest', 'blocks', 'replica', 'peak', 'cached', 'last')
    reference = stored[1]
    if reference ~= sent[5] then
      others[#others + 1] = {{tostring(place), stored[1], stored[2], stored[3], stored[4], stored[5]}}
    end
    if tonumber(last) > tonumber(stored[6]) then redis.call('HSET', cohort, 'last', last) end
  end
  for i, output in ipairs(unjudged) do
    -- Of a new cohort the first is the reference; any other came second, to a reference that its sender did not know.
    if i > 1 or not is_new then
      if output == reference then matched = matched + 1 else diverged = diverged + 1 end
    end
  end
  local observed = 0
  for _ = 1, tonumber(take()) do
    local output, times = take(), tonumber(take())
    observed = observed + times
    if redis.call('HINCRBY', outputs, output, times) == times then weigh(id, {OUTPUT_BYTES} + #output) end
  end
  redis.call('HINCRBY', cohort, 'observed', observed)
  redis.call('HINCRBY', cohort, 'matched', matched)
  local indexes = {{'seen', 'seen:' .. sent[2]}}
  if redis.call('HINCRBY', cohort, 'diverged', diverged) > 0 then
    indexes = {{'seen', 'seen:' .. sent[2], 'diverged', 'diverged:' .. sent[2]}}
  end
  for _, index in ipairs(indexes) do redis.call('ZADD', prefix .. index, 'GT', last, id) end
end

for _ = 1, tonumber(take()) do
  local id, output, specimen = take(), take(), take()
  if redis.call('HSETNX', prefix .. 'specimens:' .. id, output, specimen) == 1 then
    weigh(id, {SPECIMEN_BYTES} + #output + #specimen)
  end
end

for _ = 1, tonumber(take()) do
  local id, label, entry = take(), take(), take()
  local number = string.format('%.0f', redis.call('INCR', prefix .. 'number'))
  redis.call('ZADD', prefix .. 'run:' .. label, number, number .. ':' .. entry)
  redis.call('RPUSH', prefix .. 'entries:' .. id, number .. ':' .. label)
  redis.call('ZADD', prefix .. 'runs', number, label)
  weigh(id, {ENTRY_BYTES} + #entry + #label)
end

local added = 0
for id, bytes in pairs(weights) do
  redis.call('HINCRBY', prefix .. 'cohort:' .. id, 'weight', bytes)
  added = added + bytes
end
redis.call('INCRBY', prefix .. 'bytes', added)
return others
"""

COHORTS: Final = """
-- An index, the time before which they were last seen, and how many at most. Gives a row for each.
local prefix, rows = ARGV[1], {}
for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', prefix .. ARGV[2], ARGV[3], '-inf', 'LIMIT', 0, ARGV[4])) do
  local row = redis.call('HMGET', prefix .. 'cohort:' .. id,
    'key', 'mode', 'posture', 'model', 'observed', 'matched', 'diverged', 'first', 'last')
  if row[1] then
    row[10] = redis.call('HLEN', prefix .. 'outputs:' .. id)
    rows[#rows + 1] = row
  end
end
return rows
"""

RUNS: Final = """
-- Gives each label and its number of answers, the latest first.
local prefix, runs = ARGV[1], {}
for _, label in ipairs(redis.call('ZREVRANGE', prefix .. 'runs', 0, -1)) do
  runs[#runs + 1] = {label, redis.call('ZCARD', prefix .. 'run:' .. label)}
end
return runs
"""

PRUNE: Final = """
-- The time before which a cohort is too old, how many cohorts and how many bytes may stay, and how many may go now.
-- Gives how many went. Its first write takes away, so that it is allowed when Redis is full.
local prefix, oldest = ARGV[1], tonumber(ARGV[2])
local most, bytes, going = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local function forget(id)
  local cohort, touched = prefix .. 'cohort:' .. id, {}
  local stored = redis.call('HMGET', cohort, 'mode', 'weight')
  for _, entry in ipairs(redis.call('LRANGE', prefix .. 'entries:' .. id, 0, -1)) do
    local colon = string.find(entry, ':', 1, true)
    local number, label = string.sub(entry, 1, colon - 1), string.sub(entry, colon + 1)
    redis.call('ZREMRANGEBYSCORE', prefix .. 'run:' .. label, number, number)
    touched[label] = true
  end
  for label in pairs(touched) do
    local latest = redis.call('ZREVRANGE', prefix .. 'run:' .. label, 0, 0, 'WITHSCORES')
    if latest[1] then
      redis.call('ZADD', prefix .. 'runs', latest[2], label)
    else
      redis.call('ZREM', prefix .. 'runs', label)
    end
  end
  for _, index in ipairs({'seen', 'diverged'}) do
    redis.call('ZREM', prefix .. index, id)
    if stored[1] then redis.call('ZREM', prefix .. index .. ':' .. stored[1], id) end
  end
  redis.call('UNLINK', cohort, prefix .. 'outputs:' .. id, prefix .. 'specimens:' .. id, prefix .. 'entries:' .. id)
  redis.call('DECRBY', prefix .. 'bytes', stored[2] or 0)
end

local gone = 0
while gone < going do
  local longest = redis.call('ZRANGE', prefix .. 'seen', 0, 0, 'WITHSCORES')
  if not longest[1] then break end
  local fits = redis.call('ZCARD', prefix .. 'seen') <= most
    and tonumber(redis.call('GET', prefix .. 'bytes') or 0) <= bytes
  if fits and tonumber(longest[2]) >= oldest then break end
  forget(longest[1])
  gone = gone + 1
end
return gone
"""
