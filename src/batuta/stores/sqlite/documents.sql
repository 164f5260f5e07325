-- Statements about documents, and which namespaces there are.

-- forget_documents --
DELETE FROM documents WHERE rowid IN (
    SELECT rowid FROM documents WHERE namespace = :namespace AND expires_at <= :now ORDER BY expires_at LIMIT 100
);

-- put_document --
INSERT INTO documents (namespace, kind, key, body, created_at, written_at, expires_at)
VALUES (:namespace, :kind, :key, :body, :now, :now, :now + :keep)
ON CONFLICT (namespace, kind, key) DO UPDATE
SET body = excluded.body, written_at = excluded.written_at, expires_at = excluded.expires_at,
    created_at = iif(expires_at <= :now, excluded.created_at, created_at);

-- rewrite_document --
UPDATE documents SET body = :body
WHERE namespace = :namespace AND kind = :kind AND key = :key AND body = :before AND expires_at > :now;

-- document --
SELECT key, body, created_at, :now - written_at FROM documents
WHERE namespace = :namespace AND kind = :kind AND key = :key AND expires_at > :now;

-- documents --
-- The plus keeps the index of what has expired out of it.
SELECT key, body, created_at, :now - written_at FROM documents
WHERE namespace = :namespace AND kind = :kind AND +expires_at > :now ORDER BY created_at DESC, key LIMIT :limit;

-- next_namespace --
-- One step of a walk over the indexes: asking for all that are distinct would read every run.
SELECT min(name) FROM (
    SELECT min(namespace) AS name FROM workers WHERE namespace > :after
    UNION ALL SELECT min(namespace) FROM documents WHERE namespace > :after
    UNION ALL SELECT min(namespace) FROM schedules WHERE namespace > :after
    UNION ALL SELECT min(namespace) FROM api_keys WHERE namespace > :after AND namespace <> '*'
    UNION ALL SELECT min(namespace) FROM runs WHERE namespace > :after AND wake_at IS NOT NULL
);
