-- Statements about documents, and which namespaces there are. `batuta` stands for the schema in use.

-- forget_documents --
DELETE FROM batuta.documents d USING (
    SELECT kind, key FROM batuta.documents WHERE namespace = $1 AND expires_at <= batuta.batuta_now()
    ORDER BY expires_at LIMIT 100 FOR UPDATE SKIP LOCKED
) old
WHERE d.namespace = $1 AND d.kind = old.kind AND d.key = old.key
RETURNING d.key;

-- put_documents --
WITH put AS (
    INSERT INTO batuta.documents AS d (namespace, kind, key, body, created_at, written_at, expires_at)
    SELECT $1, $2, given.key, given.body, n.now, n.now, n.now + $5::bigint
    FROM unnest($3::text[], $4::text[]) AS given (key, body), (SELECT batuta.batuta_now() AS now) n
    ORDER BY given.key
    ON CONFLICT (namespace, kind, key) DO UPDATE
    SET body = excluded.body, written_at = excluded.written_at, expires_at = excluded.expires_at,
        created_at = CASE WHEN d.expires_at <= excluded.written_at THEN excluded.created_at ELSE d.created_at END
    RETURNING d.key
)
SELECT batuta.record_acts($1, $6, $7, $8, $9, $10, $11, array_agg(p.key ORDER BY p.key), '{}', '{}', '{}',
                          batuta.batuta_now())
FROM put p;

-- rewrite_document --
UPDATE batuta.documents d SET body = $5
WHERE d.namespace = $1 AND d.kind = $2 AND d.key = $3 AND d.body = $4 AND d.expires_at > batuta.batuta_now()
RETURNING d.key;

-- document --
SELECT key, body, created_at, batuta.batuta_now() - written_at AS age FROM batuta.documents
WHERE namespace = $1 AND kind = $2 AND key = $3 AND expires_at > batuta.batuta_now();

-- documents --
SELECT key, body, created_at, batuta.batuta_now() - written_at AS age FROM batuta.documents
WHERE namespace = $1 AND kind = $2 AND expires_at > batuta.batuta_now() ORDER BY created_at DESC, key LIMIT $3;

-- known_namespaces --
-- A walk over the indexes, one step for each namespace: asking for all that are distinct would read every run.
WITH RECURSIVE found (name) AS (
    SELECT least(
        (SELECT min(namespace) FROM batuta.workers WHERE namespace > $1::text COLLATE "C"),
        (SELECT min(namespace) FROM batuta.documents WHERE namespace > $1::text COLLATE "C"),
        (SELECT min(namespace) FROM batuta.schedules WHERE namespace > $1::text COLLATE "C"),
        (SELECT min(namespace) FROM batuta.api_keys WHERE namespace > $1::text COLLATE "C" AND namespace <> '*'),
        (SELECT min(namespace) FROM batuta.runs WHERE namespace > $1::text COLLATE "C" AND wake_at IS NOT NULL)
    ) COLLATE "C"
    UNION ALL
    SELECT least(
        (SELECT min(namespace) FROM batuta.workers WHERE namespace > found.name),
        (SELECT min(namespace) FROM batuta.documents WHERE namespace > found.name),
        (SELECT min(namespace) FROM batuta.schedules WHERE namespace > found.name),
        (SELECT min(namespace) FROM batuta.api_keys WHERE namespace > found.name AND namespace <> '*'),
        (SELECT min(namespace) FROM batuta.runs WHERE namespace > found.name AND wake_at IS NOT NULL)
    ) COLLATE "C"
    FROM found WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL LIMIT $2;
