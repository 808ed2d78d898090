"""Operations that a trace records whole: a definition on the CPU, a fake, a kernel."""
