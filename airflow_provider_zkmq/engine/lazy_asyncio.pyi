from asyncio import *
