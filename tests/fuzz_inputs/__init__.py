"""Fuzz targets of the input surfaces: what comes from outside (files, packets, calls) is damaged; nothing may break.

Each surface is a module ``surface_*.py`` here. It states

    NAME: str
        what ``make fuzz-inputs SURFACE=`` and the table call it.
    def run(rng: random.Random, count: int) -> int
        tries `count` inputs that follow from `rng` alone, and returns how many it tried. Raises AssertionError, whose
        text has what is needed to see the fault again (the input, or how it was made), when the product accepts
        something wrong or answers with anything but its own error type. Any other exception counts as a traceback of
        the product, so what the product raises by contract is caught here.

and may state

    TEST_COUNT: int = 200
        inputs in `make test`, which calls ``run`` once, with a fixed seed. It should take seconds.
    PER_CALL: int = 20
        inputs that `make fuzz-inputs` asks for in one call of ``run``. A whole call may take 10 s, so surfaces whose
        inputs take a tenth of a second say less here.

`make fuzz-inputs` calls ``run`` again and again in child processes, each call with an `rng` of its own: equal seeds,
equal inputs. So the kind of an input is drawn from `rng`, not from its number within the call, and set-up that costs
something (servers, stores, compiled programs) is kept in a function with functools.cache. The first call is a warm-up
with no limit on memory. After it the process may grow by 1 GiB; beyond, allocations fail.
"""
