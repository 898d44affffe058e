"""Which questions reach beyond one step?

- ``nearest_fit``: which change makes a job fit into memory?
- ``misfit``: why does it not fit, in words?
- ``sweep``: how does a job fare over a grid of changes? Helped by ``tasks`` (workers that may
  die), ``journal`` (going on after a kill) and ``dask_cluster`` (somebody else's workers).
- ``search``: which plan is the fastest of all that fit? Over a ``space`` of plans, pruned by
  a ``bound``; ``feasible`` says what nobody runs.
  ``reasons`` says what limits it and which knob comes next, ``batches`` ranks searches over
  several global batches.
- ``families``: which parallel strategy suits this model on this cluster? ``which_strategy``
  puts the rules of thumb to the test.
- ``capacity``: what does the whole training run take? From ``campaign`` (steps and days),
  ``ownership`` (money) and ``energy``; ``factors`` lists where every number comes from.
- ``goodput``: which share of the time counts? An ensemble of ``failures``, between which a
  ``stretch`` of training is arithmetic, with the ``checkpoints`` that the run takes.
- ``sensitivity``: which number of the profile matters most for a job? ``influences`` asks it of
  the few that most steps feel.
- ``advice``: what would an engineer say, having tried a few changes (``what_if``)?
- ``strategies``: how do the ways of data parallelism compare?
- ``report``: published plans (``published_recipes``) and GPU-hours (``published_campaigns``)
  against predicted ones.
- ``balance``: which layers should each pipeline stage hold?
"""
