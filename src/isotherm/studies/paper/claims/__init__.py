"""The paper's claims about its figures and tables, each asked of an analysis; margins are fixed beforehand."""
