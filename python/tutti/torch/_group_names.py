"""What a process group is called, as PyTorch asks and says."""

# mypy: disable-error-code="misc,import"

from __future__ import annotations


class Named:
    """The names of a group of the backend "tutti"."""

    _group_name = _group_desc = ""

    def getBackendName(self) -> str:
        """That of the backend, by which init_process_group() knows it."""
        return "tutti"

    def name(self) -> str:
        """The same, as older versions of PyTorch ask for it."""
        return self.getBackendName()

    def getGroupName(self) -> str:
        """What PyTorch has called this group; it tells groups of the same ranks apart."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """PyTorch says it once the group is there."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """What the program has said of the group, as `group_desc` of new_group()."""
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        """PyTorch says it once the group is there."""
        self._group_desc = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
