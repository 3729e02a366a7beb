"""Look whether the books of the pools that the core keeps are right."""


def check_pieces(device):
    """Fail unless the pieces of all segments lie one beside the other."""
    books = device._heap.books
    with books.lock:
        books.surplus(0)  # repairs what was broken off
        for pool in books.pools:
            free = [piece for each in pool._free.values() for piece in each.at_least(1)]
            ends = dict.fromkeys(pool._segments, 0)
            for piece in sorted([*pool.taken, *free], key=lambda each: each.address):
                assert piece.address == piece.segment.address + ends[piece.segment]
                ends[piece.segment] += piece.size
            assert ends == {segment: segment.size for segment in pool._segments}
        assert books.unused == sum(sums.cached for sums in books.survey())
