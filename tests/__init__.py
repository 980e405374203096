"""The one suite that judges both packages."""
