"""Expectations: parties that should have counted, as clusters, mirrors and ledgers of gaps say."""
