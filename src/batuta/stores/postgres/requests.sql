-- Statements about requests with an idempotency key. `batuta` stands for the schema in use.

-- forget_requests --
DELETE FROM batuta.requests r USING (
    SELECT key FROM batuta.requests WHERE namespace = $1 AND expires_at <= batuta.batuta_now()
    ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
) old
WHERE r.namespace = $1 AND r.key = old.key
RETURNING r.key;

-- begin_request --
INSERT INTO batuta.requests AS r (namespace, key, digest, owner, locked_until, expires_at)
VALUES ($1, $2, $3, $4, batuta.batuta_now() + $5::bigint, batuta.batuta_now() + $6::bigint)
ON CONFLICT (namespace, key) DO UPDATE
SET digest = excluded.digest, owner = excluded.owner, locked_until = excluded.locked_until,
    expires_at = excluded.expires_at, answer = NULL
WHERE (r.answer IS NULL AND r.digest = excluded.digest AND r.locked_until <= batuta.batuta_now())
   OR r.expires_at <= batuta.batuta_now()
RETURNING r.key, r.digest, r.owner, r.locked_until, r.expires_at, r.answer;

-- kept_request --
SELECT key, digest, owner, locked_until, expires_at, answer FROM batuta.requests WHERE namespace = $1 AND key = $2;

-- finish_request --
UPDATE batuta.requests SET answer = $4 WHERE namespace = $1 AND key = $2 AND owner = $3 RETURNING key;

-- drop_request --
DELETE FROM batuta.requests WHERE namespace = $1 AND key = $2 AND owner = $3 AND answer IS NULL RETURNING key;

-- renew_request --
UPDATE batuta.requests SET locked_until = batuta.batuta_now() + $4::bigint
WHERE namespace = $1 AND key = $2 AND owner = $3 AND answer IS NULL RETURNING key;

-- find_request --
SELECT key, digest, owner, locked_until, expires_at, answer FROM batuta.requests
WHERE namespace = $1 AND key = $2 AND expires_at > batuta.batuta_now();

-- list_requests --
SELECT key, digest, owner, locked_until, expires_at, CASE WHEN answer IS NULL THEN NULL ELSE '' END AS answer
FROM batuta.requests
WHERE namespace = $1 AND key COLLATE "C" > $2 COLLATE "C" AND starts_with(key, $4) AND expires_at > batuta.batuta_now()
ORDER BY key COLLATE "C" LIMIT $3::integer;

-- clear_request --
DELETE FROM batuta.requests WHERE namespace = $1 AND key = $2 RETURNING key;
