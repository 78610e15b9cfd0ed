"""What any job moves by collectives, compressed or not: `cc.audit`. Begin with `session`."""

from comm_compress.integrations.audit.session import Audit, audit

__all__ = ["Audit", "audit"]
