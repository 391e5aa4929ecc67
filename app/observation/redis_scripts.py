"""The Lua that runs inside Redis, where each script is one atomic step for all gateways.

Every script gets the prefix of all keys as its first argument; what follows is said above each. Numbers travel as text,
because Lua's own way of writing one keeps 14 digits. The keys, each after the prefix:

    format             the version of all this
    cohort:ID          hash: identity, model, reference, verdicts, times, ``observed``, ``weight`` in bytes, without
                       that of its answers in runs, and ``from:ORIGIN`` for each origin of its specimens
    outputs:ID         hash: output digest to how often it was seen
    specimens:ID       hash: output digest to its specimen in JSON
    entries:ID         list: ``NUMBER:LABEL`` of each answer of a run, so that it goes with its cohort
    seen, seen:MODE    sorted sets of IDs by when a cohort was last seen: all, and those of one mode
    diverged, diverged:MODE    the same of those in which an output differed
    run:LABEL          sorted set by number: ``NUMBER:ID:TIME:JSON`` of each answer of a run
    runs, firsts       sorted sets of labels by their latest number, and by the first that is still there
    number             the latest number given
    bytes              the weight of everything
    answers, answer_bytes    how many answers all runs have, and their part of the weight
"""

from typing import Final

FORMAT: Final = 1

COHORT_BYTES: Final = 1700
OUTPUT_BYTES: Final = 100
SPECIMEN_BYTES: Final = 200
ENTRY_BYTES: Final = 260
"""What one of each takes beside its own texts; measured on Redis 7.0.15, see tests/conformance/test_redis.py.

An entry takes 380 where it is the only one of its cohort, and 140 where it is one of very many.
"""

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
-- A batch, laid out by RedisStore.record. Gives, for each cohort in which somebody else was first (the reference is
-- another than the one sent, or one was sent for the reference of a known cohort): its place in the batch, and its
-- reference.
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
    if reference ~= sent[5] or #unjudged > 0 then
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
  local id, output, origin, specimen = take(), take(), take(), take()
  if redis.call('HSETNX', prefix .. 'specimens:' .. id, output, specimen) == 1 then
    weigh(id, {SPECIMEN_BYTES} + #output + #specimen)
    redis.call('HSET', prefix .. 'cohort:' .. id, 'from:' .. origin, '')
  end
end

local answers, answer_bytes, latest = tonumber(take()), 0, {{}}
local number = answers > 0 and redis.call('INCRBY', prefix .. 'number', answers) - answers
for _ = 1, answers do
  local id, label, entry = take(), take(), take()
  number = number + 1
  local written = string.format('%.0f', number)
  local member = written .. ':' .. id .. ':' .. entry
  redis.call('ZADD', prefix .. 'run:' .. label, written, member)
  redis.call('RPUSH', prefix .. 'entries:' .. id, written .. ':' .. label)
  if not latest[label] then redis.call('ZADD', prefix .. 'firsts', 'NX', written, label) end
  latest[label] = written
  answer_bytes = answer_bytes + {ENTRY_BYTES} + #member + #label
end
for label, written in pairs(latest) do redis.call('ZADD', prefix .. 'runs', written, label) end

local added = answer_bytes
for id, bytes in pairs(weights) do
  redis.call('HINCRBY', prefix .. 'cohort:' .. id, 'weight', bytes)
  added = added + bytes
end
redis.call('INCRBY', prefix .. 'bytes', added)
if answers > 0 then
  redis.call('INCRBY', prefix .. 'answers', answers)
  redis.call('INCRBY', prefix .. 'answer_bytes', answer_bytes)
end
return others
"""

COHORTS: Final = """
-- An index, the time before which they were last seen, and how many at most. Gives a row for each.
local prefix, rows = ARGV[1], {}
for _, id in ipairs(redis.call('ZREVRANGEBYSCORE', prefix .. ARGV[2], ARGV[3], '-inf', 'LIMIT', 0, ARGV[4])) do
  local row = redis.call('HMGET', prefix .. 'cohort:' .. id,
    'key', 'mode', 'posture', 'model', 'observed', 'matched', 'diverged', 'first', 'last', 'peak')
  if row[1] then
    row[11] = redis.call('HLEN', prefix .. 'outputs:' .. id)
    for _, name in ipairs(redis.call('HKEYS', prefix .. 'cohort:' .. id)) do
      if string.sub(name, 1, 5) == 'from:' then row[#row + 1] = string.sub(name, 6) end
    end
    rows[#rows + 1] = row
  end
end
return rows
"""

RUNS: Final = """
-- How many at most. Gives each label and its number of answers, the latest first.
local prefix, runs = ARGV[1], {}
for _, label in ipairs(redis.call('ZREVRANGE', prefix .. 'runs', 0, ARGV[2] - 1)) do
  runs[#runs + 1] = {label, redis.call('ZCARD', prefix .. 'run:' .. label)}
end
return runs
"""

PRUNE: Final = f"""
-- The time before which everything is too old; how many cohorts, bytes and answers of runs may stay; how many bytes of
-- these the answers may hold against the cohorts; how many cohorts and how many answers may go now. Gives how many of
-- both went. Its first write takes away, so that it is allowed when Redis is full.
local prefix, oldest = ARGV[1], tonumber(ARGV[2])
local most_cohorts, most_bytes, most_answers = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local share, cohorts_going, answers_going = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function figure(name) return tonumber(redis.call('GET', prefix .. name) or 0) end
local bytes, answers, answer_bytes = figure('bytes'), figure('answers'), figure('answer_bytes')
local cohort_bytes = bytes - answer_bytes
local cohorts_gone, answers_gone, bytes_gone, answer_bytes_gone = 0, 0, 0, 0

local function drop(label, member)
  if redis.call('ZREM', prefix .. 'run:' .. label, member) == 0 then return end
  answers_gone = answers_gone + 1
  answer_bytes_gone = answer_bytes_gone + {ENTRY_BYTES} + #member + #label
end

-- Give a run its places among the others, or none where it has no answer any more.
local function list(label)
  local run = prefix .. 'run:' .. label
  local first = redis.call('ZRANGE', run, 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', prefix .. 'firsts', first[2], label)
    redis.call('ZADD', prefix .. 'runs', redis.call('ZREVRANGE', run, 0, 0, 'WITHSCORES')[2], label)
  else
    redis.call('ZREM', prefix .. 'firsts', label)
    redis.call('ZREM', prefix .. 'runs', label)
  end
end

-- Whether an answer is past its retention; where it is, it goes.
local function expire(label, member)
  local number, id, at = string.match(member, '^(%d+):(%x+):([^:]+):')
  local held = answer_bytes - answer_bytes_gone
  local fits = answers - answers_gone <= most_answers and (cohort_bytes + held <= most_bytes or held <= share)
  if fits and (tonumber(at) or 0) >= oldest then return false end
  drop(label, member)
  local entries = prefix .. 'entries:' .. (id or '')
  if redis.call('LINDEX', entries, 0) == (number or '') .. ':' .. label then redis.call('LPOP', entries) end
  return true
end

local more = true
while more and answers_gone < answers_going do
  local firsts = redis.call('ZRANGE', prefix .. 'firsts', 0, 1, 'WITHSCORES')
  local label, room, went = firsts[1], answers_going - answers_gone, 0
  if not label then break end
  -- Up to the first of the run that comes next.
  local members = redis.call('ZRANGEBYSCORE', prefix .. 'run:' .. label, '-inf', firsts[4] or '+inf', 'LIMIT', 0, room)
  for _, member in ipairs(members) do
    more = expire(label, member)
    if not more then break end
    went = went + 1
  end
  if went > 0 or not members[1] then list(label) end
end

-- Forget a cohort, and its answers before it; true where nothing of it is left.
local function forget(id)
  local cohort, entries, touched = prefix .. 'cohort:' .. id, prefix .. 'entries:' .. id, {{}}
  local room = answers_going - answers_gone
  for _, entry in ipairs(room > 0 and redis.call('LPOP', entries, room) or {{}}) do
    local number, label = string.match(entry, '^(%d+):(.*)$')
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'run:' .. label, number, number)) do
      drop(label, member)
    end
    touched[label] = true
  end
  for label in pairs(touched) do list(label) end
  if redis.call('EXISTS', entries) == 1 then return false end
  local stored = redis.call('HMGET', cohort, 'mode', 'weight')
  for _, index in ipairs({{'seen', 'diverged'}}) do
    redis.call('ZREM', prefix .. index, id)
    if stored[1] then redis.call('ZREM', prefix .. index .. ':' .. stored[1], id) end
  end
  redis.call('UNLINK', cohort, prefix .. 'outputs:' .. id, prefix .. 'specimens:' .. id)
  bytes_gone = bytes_gone + tonumber(stored[2] or 0)
  return true
end

while cohorts_gone < cohorts_going do
  local longest = redis.call('ZRANGE', prefix .. 'seen', 0, 0, 'WITHSCORES')
  if not longest[1] then break end
  local held = cohort_bytes - bytes_gone
  local all = held + answer_bytes - answer_bytes_gone
  local fits = redis.call('ZCARD', prefix .. 'seen') <= most_cohorts
    and (all <= most_bytes or held <= most_bytes - share)
  if (fits and tonumber(longest[2]) >= oldest) or not forget(longest[1]) then break end
  cohorts_gone = cohorts_gone + 1
end

if answers ~= 0 and redis.call('EXISTS', prefix .. 'firsts') == 0 then
  -- Not by what went here alone: Redis may have thrown out a run by itself.
  redis.call('DEL', prefix .. 'answers', prefix .. 'answer_bytes')
  redis.call('DECRBY', prefix .. 'bytes', bytes_gone + answer_bytes)
elseif cohorts_gone + answers_gone > 0 then
  redis.call('DECRBY', prefix .. 'bytes', bytes_gone + answer_bytes_gone)
  redis.call('DECRBY', prefix .. 'answers', answers_gone)
  redis.call('DECRBY', prefix .. 'answer_bytes', answer_bytes_gone)
end
return {{cohorts_gone, answers_gone}}
"""
