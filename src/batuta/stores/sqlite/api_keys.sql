-- Statements about API keys.

-- put_api_key --
INSERT INTO api_keys (id, namespace, name, scope, digest, created_by, created_at, expires_at)
VALUES (:id, :namespace, :name, :scope, :digest, :created_by, :now, :expires_at)
ON CONFLICT (id) DO NOTHING;

-- rewrite_api_key --
UPDATE api_keys SET digest = :digest WHERE namespace = :namespace AND id = :id;

-- api_keys --
SELECT id, namespace, name, scope, digest, created_by, created_at, expires_at, last_used_at, revoked_at
FROM api_keys WHERE namespace = ? ORDER BY id;

-- find_api_key --
SELECT id, namespace, name, scope, digest, created_by, created_at, expires_at, last_used_at, revoked_at
FROM api_keys WHERE id = ?;

-- has_api_keys --
SELECT EXISTS (
    SELECT 1 FROM api_keys
    WHERE (expires_at IS NULL OR expires_at > :now) AND (revoked_at IS NULL OR revoked_at > :now)
);

-- note_api_key --
UPDATE api_keys SET last_used_at = :now
WHERE id = :id AND (last_used_at IS NULL OR last_used_at <= :now - :noted);

-- revoke_api_key --
UPDATE api_keys SET revoked_at = :at
WHERE namespace = :namespace AND id = :id AND (revoked_at IS NULL OR revoked_at > :at);
