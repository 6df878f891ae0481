"""The main job, shown: deploy, execute, train on real text, report, destroy, on the embedded AWS."""
