-- Brings the tables of a database older than the baseline to the baseline. Every statement may find its work done: such
-- databases differ by what they have already. The comments of the baseline follow, then all functions, triggers and views.

ALTER TABLE batuta.attempts ADD COLUMN IF NOT EXISTS tokens text;
ALTER TABLE batuta.workers ADD COLUMN IF NOT EXISTS process text NOT NULL DEFAULT '';
ALTER TABLE batuta.audit ADD COLUMN IF NOT EXISTS salt text NOT NULL DEFAULT '';
ALTER TABLE batuta.audit_heads ADD COLUMN IF NOT EXISTS salt text NOT NULL DEFAULT '';

CREATE TABLE IF NOT EXISTS batuta.marks (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    value     text NOT NULL,
    PRIMARY KEY (namespace, name)
);
