-- Statements about requests with an idempotency key.

-- forget_requests --
DELETE FROM requests WHERE (namespace, key) IN (
    SELECT namespace, key FROM requests WHERE namespace = :namespace AND expires_at <= :now ORDER BY expires_at LIMIT 100
);

-- forget_request --
DELETE FROM requests WHERE namespace = :namespace AND key = :key AND expires_at <= :now;

-- begin_request --
INSERT INTO requests (namespace, key, digest, owner, locked_until, expires_at)
VALUES (:namespace, :key, :digest, :owner, :now + :lock, :now + :keep)
ON CONFLICT (namespace, key) DO UPDATE
SET owner = excluded.owner, locked_until = excluded.locked_until, expires_at = excluded.expires_at
WHERE answer IS NULL AND digest = excluded.digest AND locked_until <= :now;

-- kept_request --
SELECT key, digest, owner, locked_until, expires_at, answer FROM requests WHERE namespace = :namespace AND key = :key;

-- finish_request --
UPDATE requests SET answer = :answer WHERE namespace = :namespace AND key = :key AND owner = :owner;

-- drop_request --
DELETE FROM requests WHERE namespace = :namespace AND key = :key AND owner = :owner AND answer IS NULL;

-- renew_request --
UPDATE requests SET locked_until = :until
WHERE namespace = :namespace AND key = :key AND owner = :owner AND answer IS NULL;

-- find_request --
SELECT key, digest, owner, locked_until, expires_at, answer FROM requests
WHERE namespace = :namespace AND key = :key AND expires_at > :now;

-- list_requests --
SELECT key, digest, owner, locked_until, expires_at, CASE WHEN answer IS NULL THEN NULL ELSE '' END FROM requests
WHERE namespace = :namespace AND key > :after AND substr(key, 1, :length) = :prefix AND expires_at > :now
ORDER BY key LIMIT :most;

-- clear_request --
DELETE FROM requests WHERE namespace = :namespace AND key = :key;
