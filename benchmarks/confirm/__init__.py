"""Records that survive a change of code: ``python -m benchmarks confirm [NAMES]``.

A change of a module of the library makes every record whose benchmark imports it one of another
library, and running all of them again takes hours. ``confirm`` runs a small portion of a record's
piece again by the present library, and compares every number with the recorded one.

Portion
    The first seed of the first of everything else that the record varies (network, problem, world,
    line), where ``portions`` names nothing else. Only rows that one run makes in any case come
    along. Of the comparison: one task and seed, with the recorded settings, and the methods that
    rest on the network of metric learning or train none; what is trained anew for every method is
    of ``baselines``, not of the library.
Equal
    Two numbers that differ by at most 1e-4 of the larger one; below .01, by 1e-6. Words, flags and
    lengths of lists are equal or not. Times, memory, curves and pictures are not compared.
Confirmed
    A line ``confirmed`` in the record: hash and version of the library, date, commit, portion, how
    many numbers, their largest difference, and the hash of all else in the record. Where anything
    in the record changes, or what it imports of the library, the line counts no more.
Moved
    The numbers are printed, the record stays as it is, and the command ends with 1.
Not to be confirmed
    Records of times, which no run repeats; of changed definitions or methods, which are to be run;
    those that were made on other than one thread, on which numbers of trained networks depend.
By its own library
    A record that a processor's own kernels made is run by them, and moves on other processors.
    Then the library of its commit runs the same portion here. Where both libraries give equal
    numbers on one processor, the library moved none of them: the record is confirmed, and the line
    says so (``beside``), and by how much the record itself differs from both (``kernels``).

A portion says nothing certain about the rest of its record: code that only other rows pass through
can move them. So the line names the portion, and before a release the records are run.
Each record is written by itself, whole or not at all; interrupted, the same command goes on.
"""
