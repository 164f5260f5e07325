-- Statements about runs that are paused. `batuta` stands for the schema in use.

-- pause_runs --
SELECT * FROM batuta.pause_runs($1, $2, $3, $4, $5, $6, $7, $8);

-- resume_runs --
SELECT * FROM batuta.resume_runs($1, $2, $3, $4, $5, $6, $7, $8);

-- cancel_runs --
SELECT * FROM batuta.cancel_runs($1, $2, $3, $4, $5, $6, $7, $8, $9);
