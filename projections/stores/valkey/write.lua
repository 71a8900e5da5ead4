-- The one script by which a view's keys change: compare and write are one step, so any number of
-- writers may race. Versions are compared as text of equal length: Lua's numbers hold no 63-bit
-- integer.
--
-- KEYS: hash of deletes, version below which nothing is taken any more, hash of links.
-- ARGV: what to do ("write" or "sweep"), prefix of rows, of lookups, counters and leaderboards,
--       layout, lifetime in ms, then what it is done to.
local deletes, links = KEYS[1], KEYS[3]
local rows = ARGV[2]
local prefixes = {l = ARGV[3], c = ARGV[4], b = ARGV[5]}
local hashed, ttl = ARGV[6] == 'hash', tonumber(ARGV[7])
local FIRST, LAST = 13, 31 -- {"_version":" and its digits

local function failure(...)
  local answer = redis.pcall(...)
  return type(answer) == 'table' and answer.err or nil
end

local function negated(amount)
  if amount == '' or amount == '0' then return amount end
  return amount:sub(1, 1) == '-' and amount:sub(2) or '-' .. amount
end

local function count(key, sign, amount)
  local err = failure('HINCRBY', key, 'rows', sign)
  if err then return err end
  if amount ~= '' then
    err = failure('HINCRBY', key, 'sum', amount)
    if err then redis.call('HINCRBY', key, 'rows', -sign) end
  end
  if redis.call('HGET', key, 'rows') == '0' then redis.call('DEL', key) end
  return err
end

-- Adds the part that a row has in something beside rows, or takes it away.
local function link(one, name, sign)
  local key = prefixes[one[1]] .. one[2]
  if one[1] == 'c' then return count(key, sign, sign > 0 and one[3] or negated(one[3])) end
  if one[1] == 'l' then return failure(sign > 0 and 'SADD' or 'SREM', key, name) end
  if sign > 0 then return failure('ZADD', key, one[3], name) end
  return failure('ZREM', key, name)
end

-- Replaces the parts that a row has; all of them or, with the error returned, none.
local function relink(name, new, forced)
  local old = redis.call('HGET', links, name) or ''
  if old == new then return nil end
  local done = {}
  for sign, packed in pairs({[-1] = old, [1] = new}) do
    done[sign] = packed == '' and {} or cjson.decode(packed)
  end
  local did, err = {}, nil
  for _, sign in ipairs({-1, 1}) do
    for _, one in ipairs(done[sign]) do
      if not err then
        err = link(one, name, sign)
        if err and forced then err = nil elseif not err then did[#did + 1] = {one, sign} end
      end
    end
  end
  if err then
    for i = #did, 1, -1 do link(did[i][1], name, -did[i][2]) end
    return err
  end
  if new == '' then redis.call('HDEL', links, name) else redis.call('HSET', links, name, new) end
  return nil
end

-- The version that a row has, and whether it is in the other layout; nil if it is no row of ours.
local function stored(key)
  local live, other
  if hashed then live = redis.pcall('HGET', key, '_version')
  else live = redis.pcall('GETRANGE', key, FIRST, LAST) end
  if type(live) ~= 'table' then return live or '', false end
  if hashed then other = redis.pcall('GETRANGE', key, FIRST, LAST)
  else other = redis.pcall('HGET', key, '_version') end
  if type(other) == 'string' and #other == LAST - FIRST + 1 then return other, true end
  return nil, false
end

-- A row's value is the text of a document, or the fields of a hash.
local function put(key, version, value)
  if not hashed then
    if ttl > 0 then redis.call('SET', key, value, 'PX', ttl) else redis.call('SET', key, value) end
    return
  end
  redis.call('HSET', key, '_version', version, unpack(value))
  if redis.call('HLEN', key) ~= #value / 2 + 1 then -- what is NULL by now
    redis.call('DEL', key)
    redis.call('HSET', key, '_version', version, unpack(value))
  end
  if ttl > 0 then redis.call('PEXPIRE', key, ttl) else redis.call('PERSIST', key) end
end

if ARGV[1] == 'sweep' then
  local removed = 0
  for i = 9, #ARGV do
    local name, key = ARGV[i], rows .. ARGV[i]
    local live = stored(key)
    local version = live
    if live == '' then version = redis.call('HGET', deletes, name) or '' end
    if version and version < ARGV[8] then
      relink(name, '', true)
      if live ~= '' then removed = removed + redis.call('DEL', key) end
    end
  end
  return removed
end

local floor, done, refused = redis.call('GET', KEYS[2]) or '', {0, 0, 0, 0}, {}
for place, change in ipairs(cmsgpack.unpack(ARGV[8])) do
  local name, version, value, wanted, parts = unpack(change)
  local key, deleted, err = rows .. name, '', nil
  local live, other = stored(key)
  if live == '' then deleted = redis.call('HGET', deletes, name) or '' end
  if not live then
    refused[#refused + 1] = {place, 'WRONGTYPE'}
  elseif live >= version or deleted >= version or floor > version then
    done[3] = done[3] + 1
  elseif wanted and wanted ~= '' and wanted ~= live then
    done[4] = done[4] + 1
  else
    if parts then err = relink(name, parts, false) end
    if err then
      -- only what is wrong with a key of this row; all else is wrong with the server
      local known = err:match('WRONGTYPE') or err:match('overflow') or err:match('not an integer')
      if not known then return redis.error_reply(err) end
      refused[#refused + 1] = {place, known}
    elseif value == '' then
      redis.call('HSET', deletes, name, version)
      if live ~= '' then redis.call('DEL', key) end
      done[2] = done[2] + 1
    else
      if other then redis.call('DEL', key) end
      put(key, version, value)
      -- a row that goes by itself is remembered as one that was deleted
      if ttl > 0 then redis.call('HSET', deletes, name, version)
      elseif deleted ~= '' then redis.call('HDEL', deletes, name) end
      done[1] = done[1] + 1
    end
  end
end
done[5] = refused
return done
