-- Statements about breakers and limits. `batuta` stands for the schema in use.

-- partner_docs --
SELECT batuta.batuta_now() AS now, own.doc AS own, p.doc, p.version
FROM (SELECT 1) AS always
LEFT JOIN batuta.partners own ON own.namespace = $1 AND own.kind = $2 AND own.name = $3 AND own.key = ''
LEFT JOIN batuta.partners p ON p.namespace = $1 AND p.kind = $2 AND p.name = $3 AND p.key = $4;

-- put_partner --
-- Only if the version ($5, 0 for none) is still the one that was read.
WITH written AS (
    INSERT INTO batuta.partners AS p (namespace, kind, name, key, version, doc, expires_at)
    SELECT $1, $2, $3, $4, 1, $6, $7::bigint WHERE $5::bigint = 0
    ON CONFLICT (namespace, kind, name, key) DO NOTHING
    RETURNING p.name
), rewritten AS (
    UPDATE batuta.partners p SET version = p.version + 1, doc = $6, expires_at = $7
    WHERE p.namespace = $1 AND p.kind = $2 AND p.name = $3 AND p.key = $4 AND p.version = $5 AND $6 <> ''
    RETURNING p.name
), dropped AS (
    DELETE FROM batuta.partners p
    WHERE p.namespace = $1 AND p.kind = $2 AND p.name = $3 AND p.key = $4 AND p.version = $5 AND $6 = ''
    RETURNING p.name
), done AS (
    SELECT name FROM written UNION ALL SELECT name FROM rewritten UNION ALL SELECT name FROM dropped
)
SELECT batuta.record_acts($1, $8, $9, $10, $11, $12, $13, ARRAY[d.name], '{}', '{}', '{}', batuta.batuta_now())
FROM done d;

-- forget_partners --
DELETE FROM batuta.partners p USING (
    SELECT key FROM batuta.partners
    WHERE namespace = $1 AND kind = $2 AND name = $3 AND expires_at <= batuta.batuta_now()
    LIMIT 100 FOR UPDATE SKIP LOCKED
) old
WHERE p.namespace = $1 AND p.kind = $2 AND p.name = $3 AND p.key = old.key;

-- partners --
SELECT kind, name, key, doc FROM batuta.partners WHERE namespace = $1 AND key = '' ORDER BY kind, name LIMIT $2;

-- partner_keys --
SELECT kind, name, key, doc FROM batuta.partners WHERE namespace = $1 ORDER BY kind, name, key LIMIT $2;

-- wake_gate --
WITH clock AS MATERIALIZED (
    SELECT batuta.batuta_now() AS now
), held AS MATERIALIZED (
    SELECT r.run_id FROM batuta.runs r, clock c
    WHERE r.namespace = $1 AND r.reason = $2 AND r.reason <> '' AND r.wake_at > c.now AND r.wake_at IS NOT NULL
    ORDER BY r.wake_at LIMIT $3 FOR NO KEY UPDATE OF r SKIP LOCKED
), woken AS (
    UPDATE batuta.runs r SET wake_at = c.now FROM held h, clock c WHERE r.run_id = h.run_id RETURNING r.run_id
)
SELECT count(*)::integer AS woken FROM woken;
