-- Dead letters. `batuta` stands for the schema in use.

-- commit_letters --
-- As commit_beyond, where some of the runs that close are dead letters.
SELECT b.*
FROM batuta.commit_beyond(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47,
    $48, $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, $60, $61, $62, $63, $64, $65, $66, $67, $68, $69,
    $70, $71, $72, $73, $74, $75, $76, $77, $78, $79, $80, $81, $82, $83, $84, $85, $86) b
CROSS JOIN LATERAL batuta.write_letters($1, b.won, $87, $88, $89, $90, $91, $92, $93, $94, $95, $96) w;

-- discard_letters --
SELECT d.resolved, a.recorded
FROM batuta.resolve_letters($1, $2, 'discarded', $3, NULL) AS d(resolved)
CROSS JOIN LATERAL batuta.record_letters($1, $4, $5, $6, $7, $8, $9, d.resolved, 'discarded') AS a(recorded);

-- letter --
SELECT * FROM batuta.dead_letters l WHERE l.run_id = $2 AND l.namespace = $1;

-- list_letters --
-- Newest first, state by state, after a cursor. What does not restrict is null.
SELECT l.*
FROM unnest($2::text[]) AS s(state)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.dead_letters l
    WHERE l.namespace || ':' = $1 || ':' AND l.state = s.state
      AND ($3::text IS NULL OR l.fingerprint = $3)
      AND ($4::text IS NULL OR l.reason = $4)
      AND ($5::text IS NULL OR l.name = $5)
      AND ($6::text IS NULL OR l.error = $6)
      AND ($7::text IS NULL OR l.activity = $7)
      AND ($8::text IS NULL OR l.kind = $8)
      AND ($9::text IS NULL OR l.queue = $9)
      AND ($10::text IS NULL OR l.flow_key = $10)
      AND ($11::text IS NULL OR starts_with(l.id, $11))
      AND ($12::bigint IS NULL OR l.at > $12)
      AND ($13::bigint IS NULL OR l.at < $13)
      AND (l.at, l.run_id) < ($14::bigint, $15::uuid)
    ORDER BY l.at DESC, l.run_id DESC LIMIT $16
) l
ORDER BY l.at DESC, l.run_id DESC LIMIT $16;

-- list_alike --
-- The same for one fingerprint.
SELECT l.*
FROM unnest($2::text[]) AS s(state)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.dead_letters l
    WHERE l.namespace = $1 AND l.fingerprint = $3::text AND l.state = s.state
      AND ($4::text IS NULL OR l.reason = $4)
      AND ($5::text IS NULL OR l.name = $5)
      AND ($6::text IS NULL OR l.error = $6)
      AND ($7::text IS NULL OR l.activity = $7)
      AND ($8::text IS NULL OR l.kind = $8)
      AND ($9::text IS NULL OR l.queue = $9)
      AND ($10::text IS NULL OR l.flow_key = $10)
      AND ($11::text IS NULL OR starts_with(l.id, $11))
      AND ($12::bigint IS NULL OR l.at > $12)
      AND ($13::bigint IS NULL OR l.at < $13)
      AND (l.at, l.run_id) < ($14::bigint, $15::uuid)
    ORDER BY l.at DESC, l.run_id DESC LIMIT $16
) l
ORDER BY l.at DESC, l.run_id DESC LIMIT $16;

-- letter_groups --
-- Those with the newest letters first. A group is found with the state, name and reason of its newest letter, and then
-- all that belong to it are added up. `+ 0`: others of the group are found by its key, not by their time.
SELECT l.*, t.count AS letters, t.first_at, t.last_at
FROM (
    SELECT g.fingerprint, g.last_at
    FROM unnest($2::text[]) AS s(state)
    CROSS JOIN LATERAL (
        SELECT g.fingerprint, g.last_at FROM batuta.letter_groups g
        WHERE g.namespace || ':' = $1 || ':' AND g.state = s.state
          AND ($3::text IS NULL OR g.fingerprint = $3)
          AND ($4::text IS NULL OR g.reason = $4)
          AND ($5::text IS NULL OR g.name = $5)
          AND ($6::text IS NULL OR g.error = $6)
          AND ($7::text IS NULL OR g.activity = $7)
          AND (g.last_at, g.fingerprint) < ($8::bigint, $9::text COLLATE "C")
          AND NOT EXISTS (
              SELECT FROM batuta.letter_groups o
              WHERE o.namespace = $1 AND o.fingerprint = g.fingerprint AND o.state = ANY ($2)
                AND ($4::text IS NULL OR o.reason = $4)
                AND ($5::text IS NULL OR o.name = $5)
                AND (o.last_at + 0, o.state, o.name, o.reason) > (g.last_at, g.state, g.name, g.reason) OFFSET 0)
        ORDER BY g.last_at DESC, g.fingerprint DESC LIMIT $10
    ) g
    ORDER BY g.last_at DESC, g.fingerprint DESC LIMIT $10
) g
CROSS JOIN LATERAL (
    SELECT sum(o.count)::bigint AS count, min(o.first_at) AS first_at, max(o.last_at) AS last_at
    FROM batuta.letter_groups o
    WHERE o.namespace = $1 AND o.fingerprint = g.fingerprint AND o.state = ANY ($2)
      AND ($4::text IS NULL OR o.reason = $4)
      AND ($5::text IS NULL OR o.name = $5)
) t
CROSS JOIN LATERAL (
    SELECT e.*
    FROM unnest($2::text[]) AS s(state)
    CROSS JOIN LATERAL (
        SELECT * FROM batuta.dead_letters l
        WHERE l.namespace = $1 AND l.fingerprint = g.fingerprint AND l.state = s.state
          AND ($4::text IS NULL OR l.reason = $4)
          AND ($5::text IS NULL OR l.name = $5)
        ORDER BY l.at DESC, l.run_id DESC LIMIT 1
    ) e
    ORDER BY e.at DESC, e.run_id DESC LIMIT 1
) l
ORDER BY g.last_at DESC, g.fingerprint DESC;

-- group_letters --
-- The same by filters that nothing counts by: all letters are looked through.
WITH found AS MATERIALIZED (
    SELECT l.fingerprint, count(*) AS letters, min(l.at) AS first_at, max(l.at) AS last_at
    FROM batuta.dead_letters l
    WHERE l.namespace = $1 AND l.state = ANY ($2::text[])
      AND ($3::text IS NULL OR l.fingerprint = $3)
      AND ($4::text IS NULL OR l.reason = $4)
      AND ($5::text IS NULL OR l.name = $5)
      AND ($6::text IS NULL OR l.error = $6)
      AND ($7::text IS NULL OR l.activity = $7)
      AND ($8::text IS NULL OR l.kind = $8)
      AND ($9::text IS NULL OR l.queue = $9)
      AND ($10::text IS NULL OR l.flow_key = $10)
      AND ($11::text IS NULL OR starts_with(l.id, $11))
      AND ($12::bigint IS NULL OR l.at > $12)
      AND ($13::bigint IS NULL OR l.at < $13)
    GROUP BY l.fingerprint
    HAVING (max(l.at), l.fingerprint) < ($14::bigint, $15::text COLLATE "C")
    ORDER BY max(l.at) DESC, l.fingerprint DESC LIMIT $16
)
SELECT l.*, f.letters, f.first_at, f.last_at
FROM found f
CROSS JOIN LATERAL (
    SELECT e.*
    FROM unnest($2::text[]) AS s(state)
    CROSS JOIN LATERAL (
        SELECT * FROM batuta.dead_letters l
        WHERE l.namespace = $1 AND l.fingerprint = f.fingerprint AND l.state = s.state AND l.at <= f.last_at
          AND ($4::text IS NULL OR l.reason = $4)
          AND ($5::text IS NULL OR l.name = $5)
          AND ($6::text IS NULL OR l.error = $6)
          AND ($7::text IS NULL OR l.activity = $7)
          AND ($8::text IS NULL OR l.kind = $8)
          AND ($9::text IS NULL OR l.queue = $9)
          AND ($10::text IS NULL OR l.flow_key = $10)
          AND ($11::text IS NULL OR starts_with(l.id, $11))
        ORDER BY l.at DESC, l.run_id DESC LIMIT 1
    ) e
    ORDER BY e.at DESC, e.run_id DESC LIMIT 1
) l
ORDER BY f.last_at DESC, f.fingerprint DESC;

-- count_letters --
SELECT count(*) AS letters FROM batuta.dead_letters l
WHERE l.namespace = $1 AND l.state = ANY ($2::text[])
  AND ($3::text IS NULL OR l.fingerprint = $3)
  AND ($4::text IS NULL OR l.reason = $4)
  AND ($5::text IS NULL OR l.name = $5)
  AND ($6::text IS NULL OR l.error = $6)
  AND ($7::text IS NULL OR l.activity = $7)
  AND ($8::text IS NULL OR l.kind = $8)
  AND ($9::text IS NULL OR l.queue = $9)
  AND ($10::text IS NULL OR l.flow_key = $10)
  AND ($11::text IS NULL OR starts_with(l.id, $11))
  AND ($12::bigint IS NULL OR l.at > $12)
  AND ($13::bigint IS NULL OR l.at < $13);

-- sum_letters --
-- The same by filters that the groups are counted by.
SELECT coalesce(sum(g.count), 0)::bigint AS letters FROM batuta.letter_groups g
WHERE g.namespace = $1 AND g.state = ANY ($2::text[])
  AND ($3::text IS NULL OR g.fingerprint = $3)
  AND ($4::text IS NULL OR g.reason = $4)
  AND ($5::text IS NULL OR g.name = $5)
  AND ($6::text IS NULL OR g.error = $6)
  AND ($7::text IS NULL OR g.activity = $7);
