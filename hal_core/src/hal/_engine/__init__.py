"""Operations from their submission to their retirement, and waits; none of it knows a buffer."""
