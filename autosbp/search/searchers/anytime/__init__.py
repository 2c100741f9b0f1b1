"""Cost graphs that are too dense for elimination, or whose memory binds at thousands of instants.

``problem`` what is given; ``contract`` and ``dead_ends`` make it smaller without losing an optimum; ``network`` lays it out for
compiled loops (``compiled``). ``bound`` proves and prices memory, ``anneal`` and ``trees`` improve, ``repair`` makes room,
``proof`` closes what is small enough, ``solver`` lets them work together.
"""
