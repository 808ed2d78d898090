"""The paper's protocol: what to run next, and what came out."""
