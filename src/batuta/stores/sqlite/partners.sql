-- Statements about breakers and limits.

-- partner_doc --
SELECT doc FROM partners WHERE namespace = ? AND kind = ? AND name = ? AND key = ?;

-- put_partner --
INSERT INTO partners (namespace, kind, name, key, doc, expires_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, kind, name, key) DO UPDATE SET doc = excluded.doc, expires_at = excluded.expires_at;

-- drop_partner --
DELETE FROM partners WHERE namespace = ? AND kind = ? AND name = ? AND key = ?;

-- forget_partners --
DELETE FROM partners WHERE (namespace, kind, name, key) IN (
    SELECT namespace, kind, name, key FROM partners
    WHERE namespace = ? AND kind = ? AND name = ? AND expires_at <= ? LIMIT 100
);

-- partners --
SELECT kind, name, key, doc FROM partners INDEXED BY partners_own
WHERE namespace = ? AND key = '' ORDER BY kind, name LIMIT ?;

-- partner_keys --
SELECT kind, name, key, doc FROM partners WHERE namespace = ? ORDER BY kind, name, key LIMIT ?;

-- wake_gate --
UPDATE runs SET wake_at = :now WHERE rowid IN (
    SELECT rowid FROM runs INDEXED BY runs_gated
    WHERE namespace = :namespace AND reason = :reason AND reason <> '' AND wake_at > :now AND wake_at IS NOT NULL
    ORDER BY wake_at LIMIT :limit
);
