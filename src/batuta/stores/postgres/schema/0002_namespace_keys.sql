-- One namespace alone has a run_id, and with it all that is found by it: journal, inbox, outputs and attempts. A start with
-- a run_id of another namespace is refused. The namespace stays in the index for lists. Builds one index over all runs.
ALTER TABLE batuta.runs DROP CONSTRAINT runs_pkey, ADD PRIMARY KEY (run_id) INCLUDE (namespace);
