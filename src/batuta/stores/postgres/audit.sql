-- Statements about the audit log. `batuta` stands for the schema in use.

-- note_act --
SELECT batuta.record_acts($1, $3, $4, $5, $6, $7, $8, ARRAY[$2::text], '{}', '{}', '{}', batuta.batuta_now());

-- audit_head --
SELECT h.number, h.hash FROM batuta.audit_heads h WHERE h.namespace = $1;

-- audit --
SELECT * FROM batuta.audit a WHERE a.namespace = $1 AND a.number > $2 ORDER BY a.number LIMIT $3;

-- acts --
-- Newest first. What does not restrict is null.
SELECT * FROM batuta.audit a
WHERE a.namespace = $1 AND a.number < $2
  AND ($3::text IS NULL OR a.target || '' = $3)
  AND ($4::text IS NULL OR a.actor = $4)
  AND ($5::text IS NULL OR a.verb = $5)
  AND ($6::bigint IS NULL OR a.at >= $6)
  AND ($7::bigint IS NULL OR a.at < $7)
ORDER BY a.number DESC LIMIT $8;

-- acts_on --
-- The same for one target.
SELECT * FROM batuta.audit a
WHERE a.namespace || '' = $1 AND a.number < $2
  AND a.target = $3
  AND ($4::text IS NULL OR a.actor = $4)
  AND ($5::text IS NULL OR a.verb = $5)
  AND ($6::bigint IS NULL OR a.at >= $6)
  AND ($7::bigint IS NULL OR a.at < $7)
ORDER BY a.number DESC LIMIT $8;
