-- Statements about API keys. `batuta` stands for the schema in use.

-- put_api_key --
WITH written AS (
    INSERT INTO batuta.api_keys (id, namespace, name, scope, digest, created_by, created_at, expires_at)
    VALUES ($2, $1, $3, $4, $5, $6, batuta.batuta_now(), $7)
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
SELECT batuta.record_acts($1, $8, $9, $10, $11, $12, $13, ARRAY[w.id], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- rewrite_api_key --
UPDATE batuta.api_keys k SET digest = $3 WHERE k.namespace = $1 AND k.id = $2;

-- api_keys --
SELECT id, namespace, name, scope, digest, created_by, created_at, expires_at, last_used_at, revoked_at
FROM batuta.api_keys WHERE namespace = $1 ORDER BY id COLLATE "C";

-- find_api_key --
SELECT id, namespace, name, scope, digest, created_by, created_at, expires_at, last_used_at, revoked_at
FROM batuta.api_keys WHERE id = $1;

-- has_api_keys --
SELECT EXISTS (
    SELECT FROM batuta.api_keys
    WHERE (expires_at IS NULL OR expires_at > batuta.batuta_now())
      AND (revoked_at IS NULL OR revoked_at > batuta.batuta_now())
) AS found;

-- note_api_key --
UPDATE batuta.api_keys SET last_used_at = batuta.batuta_now()
WHERE id = $1 AND (last_used_at IS NULL OR last_used_at <= batuta.batuta_now() - $2::bigint)
RETURNING id;

-- revoke_api_key --
WITH revoked AS (
    UPDATE batuta.api_keys k SET revoked_at = batuta.batuta_now() + $3::bigint
    WHERE k.namespace = $1 AND k.id = $2 AND (k.revoked_at IS NULL OR k.revoked_at > batuta.batuta_now() + $3::bigint)
    RETURNING k.id
)
SELECT batuta.record_acts($1, $4, $5, $6, $7, $8, $9, ARRAY[r.id], '{}', '{}', '{}', batuta.batuta_now())
FROM revoked r;
